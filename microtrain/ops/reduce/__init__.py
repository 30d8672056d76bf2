"""Operations over dimensions: sums, extrema, norms, scans, sorting."""
