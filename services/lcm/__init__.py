"""The life-cycle manager: the queue, and a Guardian for every admitted job."""
