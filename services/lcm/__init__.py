"""The life-cycle manager: the queue, who is admitted and when, and the sweep that finds what a lost hint missed."""
