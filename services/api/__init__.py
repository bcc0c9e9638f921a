"""The gateway: what users and programs call."""
