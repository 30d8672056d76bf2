"""Weights and models in the files of others: safetensors, npz, ONNX."""
