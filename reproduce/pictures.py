"""Images for README.md and docs/gallery.md from runs: ``python -m reproduce.pictures RUN...``.

The runs are those of ``glasshouse audit quickstart`` and of ``reproduce/gallery.toml``; if a scenario is in
several runs, the last one is used. All data in them are public.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import glasshouse as gh

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
README = {
    "quickstart-photos-the-same-examples-attack-by-attack.png": "quickstart.png",
    "quickstart-photos-identification.svg": "quickstart.svg",
}
GALLERY = {
    "cah": "gallery-active-the-same-examples-attack-by-attack.png",
    "class_inversion": "gallery-classes-class-inversion.png",
    "disaggregation": "quickstart-rounds-f1-against-rounds.svg",
    "dlg": "gallery-matching-the-same-examples-attack-by-attack.png",
    "ggl": "quickstart-ggl-the-same-examples-attack-by-attack.png",
    "inverting_gradients": "digits-inversion-the-same-examples-attack-by-attack.png",
    "label_inference": "gallery-matching-labels-read.svg",
    "linear_input": "quickstart-photos-the-same-examples-attack-by-attack.png",
    "maui": "quickstart-transfer-the-same-examples-attack-by-attack.png",
    "pli": "pli-digits-pli.png",
    "prolin": "quickstart-rounds-f1.svg",
    "robbing_the_fed": "gallery-sums-the-same-examples-attack-by-attack.png",
    "spear": "gallery-active-spear.png",
    "scale_mia": "quickstart-secure-sum-scale-mia.png",
    "tbi": "pli-digits-tbi.png",
}
"""The exported file of each attack; several compared attacks share one file."""


def main(*runs: str) -> None:
    """Write the images; every listed file must exist."""
    with tempfile.TemporaryDirectory() as folder:
        for run in runs:
            gh.load(run).export(figures=folder, show_private=True)
        PICTURES.mkdir(exist_ok=True)
        for name, target in README.items():
            shutil.copy(Path(folder, name), PICTURES / target)
        for attack, name in GALLERY.items():
            shutil.copy(Path(folder, name), PICTURES / f"{attack}{Path(name).suffix}")


if __name__ == "__main__":
    main(*sys.argv[1:])
