"""Checks the CUDA backend on a GPU: whether it works, that bits are equal, and how fast it is.

python -m tools.gpu_check [--json FILE]      at most four minutes, without a network
python -m tools.gpu_check --emulated         toy sizes, without a GPU
python -m tools.gpu_check.bundle FOLDER      all that another machine needs for it
python -m tools.gpu_check.kernels             what each compiled kernel uses
"""
