"""The image encoders of multimodal checkpoints, and what they share with those of sounds (audio/).

model.py       `VisionModel`: programs, resizing and placeholders of one checkpoint
families.py    the table of families, and those with tiles of one size
tower.py       vision transformers of such tiles as programs (SigLIP, CLIP, InternViT)
grid.py        `GridPatches`: tiles of any size
qwen.py        Qwen2-VL, Qwen2.5-VL, Qwen3-VL
llava.py       LLaVA 1.5, LLaVA-NeXT
gemma.py       Gemma 3
gemma4.py      Gemma 4
pooled.py      `PooledPatches`: the patches of Gemma 4
pixtral.py     Pixtral, Mistral 3
reading.py     settings that several families have
settings.py    the settings of the checkpoint's image processor or feature extractor
"""
