import os

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["LIGHTLOOP_LOCAL"] = "0"
