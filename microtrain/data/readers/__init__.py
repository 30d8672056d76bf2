"""Where rows come from: one reader for each type of file, bundled data sets, made ones."""
