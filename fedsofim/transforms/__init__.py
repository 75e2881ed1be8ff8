"""What is done to records, or to their gradients, before they are clipped."""

from fedsofim.transforms.geometry import Centre, Private, Public
from fedsofim.transforms.kfc import KFC, Oracle, Transform

TRANSFORMS: dict[str, type[Transform]] = {
    kind.name: kind for kind in (Transform, KFC, Oracle, Private, Centre, Public)
}
