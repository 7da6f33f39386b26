"""What PyTorch programs do, one small program for each thing: values, effects, graphs, and what changes them."""
