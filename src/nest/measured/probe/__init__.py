"""What a cluster's own measurements and files say of it: `nest probe`.

`program` runs on the cluster, with PyTorch alone, and is never imported here; `results` reads what
it writes, `sources` any of the files that people have; `device`, `network` and `software` make the
three descriptions of them, by the fits of `calibration`.
"""
