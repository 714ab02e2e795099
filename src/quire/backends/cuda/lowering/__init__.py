"""From the ops of a program to launches of kernels, one module for each kind of op."""
