"""Launch scripts run with stand-ins for what they would start, which record it and start nothing.

Reading order: `programs.yaml` (which programs have one), `stand_in` (a stand-in), `recording` (a
script, run with them), `document` (the launches, which `nest read` and `nest improve` take).
"""
