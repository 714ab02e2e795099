"""The twins of `kernels/choice/`, in modules of the same names.

They follow the kernels pass by pass, because a test on the emulated device runs each of them alone.
"""
