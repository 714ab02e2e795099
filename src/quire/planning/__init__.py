"""From what a user chose, a checkpoint and a machine to one concrete plan. No weights are read."""
