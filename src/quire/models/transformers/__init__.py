"""Models without a family, which run on the modules of the installed transformers.

    with_model_impl(hf_config, ...)   config.json, marked if transformers runs the model
    is_transformers(hf_config)        whether it is marked
    outline(hf_config)                program and sizes, from a module without weights
    find(hf_config)                   the configuration and the class

`mark.py` and `choice.py` import neither torch nor transformers; the others are imported for such a
model only. Classes come only from the installed package;
code of a checkpoint is never run.
"""
