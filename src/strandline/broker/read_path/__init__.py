"""What readers may see of a partition."""
