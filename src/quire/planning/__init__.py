"""From the user's arguments, a checkpoint and the machine to one concrete plan.

`gather_facts` reads, `settle_choices` decides without reading, and `fit_plan` compiles and fits the
memory. `plan.settle` calls the three. Weights are not read here.
"""
