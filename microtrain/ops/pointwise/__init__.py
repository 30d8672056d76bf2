"""Operations that compute each element by itself."""
