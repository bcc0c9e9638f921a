"""The outside world: each adapter implements a port on one library, and alone imports it."""
