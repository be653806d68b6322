"""Consumers that acknowledge each record: deliveries, redeliveries and acknowledgement floor."""
