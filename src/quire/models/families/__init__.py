"""Model families: each module turns the config.json of related models into a program.

Dense families and encoders lie here, by the names of their models. `experts/` has mixtures of
experts, `hybrid/` recurrent layers. `models/registry.py` lists the architectures of each module.
"""
