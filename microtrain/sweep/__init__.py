"""Many runs as one: the members of a sweep, trained one after the other, each as it would be alone."""
