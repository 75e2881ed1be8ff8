"""A server as in Flower's quickstarts; the strategy is the one line that is ours."""

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import fedsofim
from fedsofim.federation import DPFedSOFIM
from torch_app.task import load_test, model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    rounds, settings = config["num-server-rounds"], ("lr", "rho", "beta")
    strategy = DPFedSOFIM(
        **{name: config[name] for name in settings}, sends="gradient", fraction_evaluate=0.0
    )
    if config["noise-multiplier"]:
        spent = fedsofim.calibrate(noise_multiplier=config["noise-multiplier"], rounds=rounds)
        print(f"epsilon {spent.epsilon:.3g} at delta {spent.delta:g} for one record of a client")
    arrays = ArrayRecord(model().state_dict())
    strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=evaluate)


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    net = model()
    net.load_state_dict(arrays.to_torch_state_dict())
    X, y = load_test()
    with torch.no_grad():
        accuracy = (net(X).argmax(1) == y).float().mean().item()
    return MetricRecord({"accuracy": accuracy})
