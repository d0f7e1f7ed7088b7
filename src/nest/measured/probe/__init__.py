"""What a cluster's own measurements and files say of it: `nest probe`.

`program` runs on the cluster, with PyTorch alone, and is never imported here; `results` reads what
it writes, `sources` any of the files that people have; `described` makes three
descriptions of them, `device`, `network` and `software`, by the fits of `calibration`.
"""
