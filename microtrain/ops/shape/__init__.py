"""Views, joining, splitting and rearranging."""
