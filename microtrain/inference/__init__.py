"""A trained model in use: loaded, evaluated, asked for predictions."""
