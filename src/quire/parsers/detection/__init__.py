"""Finds the reply format of a checkpoint's model, so that no option is needed.

`detect` renders conversations with the checkpoint's chat template and sees how calls and reasoning
are written. For templates that do not show it, `table` has formats by model type.
"""
