"""Consumers, their group membership and their committed offsets."""
