"""The image encoders of multimodal checkpoints.

model.py       `VisionModel`: programs, resizing and placeholders of one checkpoint
tower.py       vision transformers of fixed tiles as programs (SigLIP, CLIP, InternViT)
families.py    one function for each family, and the table of families
settings.py    the settings of the checkpoint's image processor
"""
