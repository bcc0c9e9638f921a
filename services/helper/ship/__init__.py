"""From growing files to lines and points that the metrics service has stored exactly once.

lines    bytes -> lines (pure)            points   a line -> points (pure)
times    when each byte was first seen    source   one file, as it grows, shrinks or is replaced
shipper  all sources, until the metrics service has everything
"""
