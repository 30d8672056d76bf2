"""What a name in a YAML file stands for: losses, models, schedules."""
