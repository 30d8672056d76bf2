"""Many runs as one: the members of a sweep, each trained as it would be alone."""
