r"""Train a backbone on CIFAR-100 by the recipe of the project's own weights.

    python scripts/pretrain_backbone.py resnet20 --images DIR --out resnet20.pt
    python scripts/pretrain_backbone.py vgg16 --images DIR --out cycle1.pt \
        --epochs 18 --lr 0.05 --dropout 0.1 --sizes 16,24,32 --bf16
    python scripts/pretrain_backbone.py vgg16 --images DIR --out vgg16.pt --start cycle1.pt \
        --epochs 11 --lr 0.02 --dropout 0.1 --end 0.1 --average 600 --bf16

DIR holds `cifar-100-python/` (torchvision's) or `cifar100.npz` (scripts/pack_images.py); a `.npz`
file of other 32 x 32 images will do as well. Ctrl-C saves and stops; the same command with
--resume goes on to the same weights that an uninterrupted training would have given.

SGD with Nesterov momentum .9, weight decay 5e-4, batches of 128, one learning-rate cycle (.025 up
to .25 over the first 20 %, down to .000025), random crops from 4 black pixels around, random flips.
With --sizes images grow: each size serves an equal share of the epochs. Small images cost little,
and a network that has learnt from them needs few epochs of full size. --bf16 multiplies in
bfloat16, nearly twice as fast on CPUs that have it (AMD since Zen 4); weights stay float32.
--start begins with the weights of an earlier training: a second cycle. --average keeps an
exponential average of the weights over so many steps, and that is what is tested and written; its
batch norms are measured again at the end.
"""

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, cast

import numpy as np
import torch
from backbone_recipe import Images, Recipe, augment, normalise, shrink
from rich.console import Console
from rich.progress import Progress
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from fedsofim.core.errors import ConfigError, require
from fedsofim.data.backbones import BACKBONES, Backbone
from fedsofim.data.catalog import locate
from fedsofim.data.datasets import DatasetConfig

SAVE_EVERY = 100  # steps
console = Console(highlight=False)


class Training:
    """A training that can be left after any step and taken up again.

    Random numbers are derived from the seed and the step, so there is no generator to save.
    """

    def __init__(self, recipe: Recipe, classes: int, images: Images) -> None:
        self.recipe, self.images = recipe, images
        torch.manual_seed(recipe.seed)
        network = BACKBONES[recipe.backbone](classes)
        if recipe.start:
            network.load_state_dict(torch.load(recipe.start, weights_only=True))
        self.network: Backbone = network.to(memory_format=torch.channels_last)
        for module in self.network.modules():
            if isinstance(module, nn.Dropout):
                module.p = recipe.dropout
        self.optimizer = torch.optim.SGD(
            self.network.parameters(),
            lr=recipe.lr,
            momentum=recipe.momentum,
            nesterov=True,
            weight_decay=recipe.weight_decay,
        )
        self.average = AveragedModel(
            self.network,
            multi_avg_fn=get_ema_multi_avg_fn(1 - 1 / max(recipe.average, 1)),
            use_buffers=True,
        )
        self.step = 0
        self.steps_per_epoch = len(images.y) // recipe.batch
        require(self.steps_per_epoch >= 1, f"{len(images.y)} images do not fill a batch")

    @property
    def steps(self) -> int:
        """How many steps the whole training takes."""
        return self.recipe.epochs * self.steps_per_epoch

    def advance(self) -> float:
        """Take one step; its loss."""
        recipe, (epoch, k) = self.recipe, divmod(self.step, self.steps_per_epoch)
        order = np.random.default_rng((recipe.seed, epoch)).permutation(len(self.images.y))
        rows = torch.from_numpy(order[k * recipe.batch : (k + 1) * recipe.batch])
        torch.manual_seed(recipe.seed * 1_000_003 + self.step)
        x = shrink(normalise(augment(self.images.x[rows], recipe.pad)), recipe.size_at(epoch))
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.lr_at(self.step / max(self.steps - 1, 1))
        self.network.train()
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.bf16):
            logits = self.network(x)
        loss = nn.functional.cross_entropy(logits.float(), self.images.y[rows])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.average.update_parameters(self.network)
        self.step += 1
        value = float(loss.detach())
        require(math.isfinite(value), f"the loss is {value} at step {self.step}; try a lower --lr")
        return value

    @property
    def trained(self) -> Backbone:
        """The network with the averaged weights."""
        return cast(Backbone, self.average.module)

    def measure_norms(self) -> None:
        """Measure the batch norms of the averaged weights, on images as they are in training."""
        torch.manual_seed(self.recipe.seed)
        images = self.images.x[torch.randperm(len(self.images.x))[: 100 * self.recipe.batch]]
        update_bn((normalise(augment(x, self.recipe.pad)) for x in images.split(500)), self.trained)

    def state(self) -> dict[str, Any]:
        """All that is needed to go on."""
        return {
            "recipe": vars(self.recipe),
            "step": self.step,
            "network": self.network.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any], file: Path) -> None:
        """Go on from a saved state, of the same recipe."""
        require(
            state["recipe"] == vars(self.recipe),
            f"{file}: was trained with other settings ({state['recipe']})",
        )
        self.step = state["step"]
        self.network.load_state_dict(state["network"])
        self.average.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])


@torch.inference_mode()
def accuracy(network: Backbone, images: Images) -> float:
    """The share of images whose class the network finds."""
    network.eval()
    batches = zip(images.x.split(500), images.y.split(500), strict=True)
    return sum(int((network(normalise(x)).argmax(1) == y).sum()) for x, y in batches) / len(
        images.y
    )


def save(value: Any, file: Path) -> None:
    """Write a file that appears only when it is complete."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    torch.save(value, draft)
    draft.replace(file)


def train(training: Training, test: Images, checkpoint: Path, stop: Callable[[], bool]) -> bool:
    """Train to the end, or until a stop is requested; whether the end was reached."""
    per_epoch = training.steps_per_epoch
    while training.step < training.steps and not stop():
        began, first, total = time.perf_counter(), training.step % per_epoch, 0.0
        epoch = training.step // per_epoch + 1
        bar = Progress(console=console, transient=True, disable=not console.is_terminal)
        with bar:
            task = bar.add_task(f"epoch {epoch}", total=per_epoch, completed=first)
            for _ in range(per_epoch - first):
                total += training.advance()
                bar.advance(task)
                if training.step % SAVE_EVERY == 0:
                    save(training.state(), checkpoint)
                if stop():
                    break
        save(training.state(), checkpoint)
        if training.step % per_epoch == 0:
            seconds = time.perf_counter() - began
            score, loss = accuracy(training.trained, test), total / (per_epoch - first)
            console.print(
                f"epoch {epoch} of {training.recipe.epochs}: loss {loss:.3f}, "
                f"test accuracy {100 * score:.2f} %, {seconds:.1f} s"
            )
    return training.step == training.steps


def open_images(place: Path) -> tuple[Images, Images, int]:
    """Training images, test images and the number of classes."""
    npz = place.suffix == ".npz"
    config = DatasetConfig(
        name="npz" if npz else "cifar100",
        path=str(place) if npz else None,
        root=None if npz else str(place),
    )
    found = locate(config, place).open()
    train, test = (Images.read(found.splits[name]) for name in ("train", "test"))
    return train, test, found.classes.count


def parse() -> argparse.Namespace:
    """The command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("backbone", choices=sorted(BACKBONES))
    parser.add_argument("--images", type=Path, required=True, help="a folder, or a .npz file")
    parser.add_argument("--out", type=Path, required=True, help="the file of weights to write")
    parser.add_argument("--epochs", type=int, default=Recipe.epochs)
    parser.add_argument("--batch", type=int, default=Recipe.batch)
    parser.add_argument("--lr", type=float, default=Recipe.lr)
    parser.add_argument(
        "--sizes",
        type=lambda text: tuple(int(s) for s in text.split(",")),
        default=Recipe.sizes,
        help="widths of the images, each for an equal share of the epochs: 16,24,32",
    )
    parser.add_argument("--dropout", type=float, default=Recipe.dropout, help="of VGG's classifier")
    parser.add_argument("--bf16", action="store_true", help="multiply in bfloat16")
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--end", type=float, default=Recipe.end, help="last rate over the largest")
    parser.add_argument("--average", type=int, default=Recipe.average, help="steps to average over")
    parser.add_argument("--start", default=Recipe.start, help="a file of weights to begin with")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    return parser.parse_args()


def run(arguments: argparse.Namespace) -> None:
    """Train as the command line says."""
    checkpoint = arguments.out.with_suffix(".checkpoint")
    require(
        arguments.resume or not (checkpoint.exists() or arguments.out.exists()),
        f"{arguments.out}: was begun already; --resume goes on with it",
    )
    require(not arguments.resume or checkpoint.is_file(), f"{checkpoint}: there is none to resume")
    names = ("backbone", "epochs", "batch", "lr", "sizes", "dropout", "bf16", "seed")
    names += ("start", "end", "average")
    require(
        not arguments.start or Path(arguments.start).is_file(),
        f"--start {arguments.start}: no such file",
    )
    recipe = Recipe(**{k: getattr(arguments, k) for k in names})
    images, test, classes = open_images(arguments.images)
    training = Training(recipe, classes, images)
    if arguments.resume:
        training.restore(torch.load(checkpoint, weights_only=True), checkpoint)
    requested = False

    def request(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        if requested:
            raise KeyboardInterrupt
        requested = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, request)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    if not train(training, test, checkpoint, lambda: requested):
        console.print(f"Stopped after step {training.step} of {training.steps}; --resume goes on.")
        sys.exit(130)
    if recipe.average:
        training.measure_norms()
    save(training.trained.state_dict(), arguments.out)
    console.print(
        f"{arguments.out}: {100 * accuracy(training.trained, test):.2f} % on the test images. "
        f"Use it with backbone={recipe.backbone} backbone.weights={arguments.out}",
        soft_wrap=True,
    )


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2."""
    try:
        run(parse())
    except ConfigError as error:
        print(f"pretrain_backbone: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
