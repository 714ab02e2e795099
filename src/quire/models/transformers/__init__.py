"""Models of no family here, which the modules of the installed transformers compute.

    with_model_impl(hf_config, ...)   config.json, marked where transformers is to compute it
    is_transformers(hf_config)        whether it is marked
    outline(hf_config)                program and sizes, from a module without weights
    find(hf_config)                   the configuration and the class

`mark.py` and `choice.py` import neither torch nor transformers; the others are imported for such a
model alone. Classes come from the installed package alone:
no code of a checkpoint is run.
"""
