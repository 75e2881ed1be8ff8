"""A client that answers with the noisy mean of its records' clipped gradients."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from opacus import GradSampleModule

from torch_app.task import load, model

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    net = model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    node, config = context.node_config, context.run_config
    X, y = load(node["partition-id"], node["num-partitions"])
    gradient = private_gradient(net, X, y, config["clip"], config["noise-multiplier"])
    content = {"arrays": ArrayRecord(gradient), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(RecordDict(content), reply_to=message)


def private_gradient(net, X, y, clip, noise_multiplier):
    """Clip each record's gradient, add them up with noise of std noise_multiplier * clip."""
    watched = GradSampleModule(net, loss_reduction="sum")
    torch.nn.functional.cross_entropy(watched(X), y, reduction="sum").backward()
    grads = {name: p.grad_sample for name, p in net.named_parameters()}
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    scale = (clip / norms).clamp(max=1.0)
    source = torch.Generator()
    source.seed()  # by itself torch starts every process with the same numbers
    noise = {n: torch.empty(g.shape[1:]).normal_(generator=source) for n, g in grads.items()}
    sums = {n: torch.einsum("n,n...->...", scale, g) for n, g in grads.items()}
    return {n: (sums[n] + noise_multiplier * clip * noise[n]) / len(y) for n in sums}
