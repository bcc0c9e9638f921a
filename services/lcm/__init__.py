"""The life-cycle manager: keeps the queue, decides which jobs are admitted and when, and removes leftovers."""
