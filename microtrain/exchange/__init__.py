"""Weights and models in the files of others: safetensors, PyTorch's .pt, npz, ONNX."""
