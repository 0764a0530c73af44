"""Speed against everything a user could take instead: chains, real models, the optimizer itself.

Not part of the wheel. Each of run_chains.py, run_models.py and run_optimizer.py prints its tables and writes JSON.
"""
