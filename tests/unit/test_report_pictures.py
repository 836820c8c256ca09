"""Private pictures are blurred beyond recognition; public ones stay as they are."""

import base64
import dataclasses
import io
import re

import numpy as np
import pytest
import report_specimen as specimen
from PIL import Image
from report_cards import CARDS

from glasshouse.errors import BadFile
from glasshouse.report.html import write_html
from glasshouse.report.pictures import MOSAIC, STEPS, blur, merge_sheets, png, sheet
from glasshouse.results.files import pictures
from glasshouse.results.records import Exhibit, Result


def decode(source):
    data = base64.b64decode(source.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(data)), dtype=np.float64) / 255


@pytest.fixture
def exhibit(tmp_path):
    return specimen.pictures_exhibit(tmp_path, "ward-7")


def test_public_pictures_keep_every_pixel(exhibit, tmp_path):
    result = sheet(exhibit, tmp_path, cards=CARDS, show=True)
    original = pictures(exhibit, tmp_path)
    assert result.columns == ("victim 3", "victim 8", "victim 11", "victim 17")
    assert [row.label for row in result.rows] == ["original", "IG", "GI", "IG, noise 0.1", "null"]
    for kind, row in enumerate(result.rows):
        for victim, cell in enumerate(row.pictures):
            assert np.abs(decode(cell.source) - original[victim, kind]).max() <= 0.5 / 255 + 1e-9
    assert not result.blurred


def test_every_column_beside_private_data_is_blurred(exhibit, tmp_path):
    """A reconstruction of a private picture is that picture, whatever its column is called."""
    one = dataclasses.replace(exhibit, private=("original",))
    result = sheet(one, tmp_path, cards=CARDS, show=False)
    original = pictures(one, tmp_path)
    for kind, row in enumerate(result.rows):
        for victim, cell in enumerate(row.pictures):
            records = decode(cell.source)
            assert cell.blurred
            if original[victim, kind].std() > 0.01:
                assert np.abs(records - original[victim, kind]).mean() > 0.05
    assert result.rows[0].pictures[0].alt == "original, victim 3 (blurred)"


def pair(title, images, run):
    """Originals and one attack's reconstructions, as an audit files them."""
    np.savez(run / f"{title}.npz", images=images)
    data = {"columns": ["original", "reconstruction"], "rows": ["1", "2", "3"]}
    exhibit = Exhibit(kind="pictures", scenario="s", title=title, caption="c", data=data, file=f"{title}.npz")
    return sheet(exhibit, run, cards=CARDS, show=True)


def test_attacks_on_the_same_examples_share_one_sheet(tmp_path):
    draw = np.random.default_rng(2)
    first, other = draw.random((2, 3, 2, 8, 8, 1))
    second = np.stack([first[:, 0], other[:, 1]], axis=1)
    alone, one, two = (
        pair("ggl", other, tmp_path),
        pair("dlg", first, tmp_path),
        pair("idlg", second, tmp_path),
    )
    together, rest = merge_sheets([one, alone, two])
    assert [row.label for row in together.rows] == ["original", "DLG", "iDLG"]
    assert together.rows[2].pictures == two.rows[1].pictures
    assert together.caption == "c"
    assert rest is alone


def test_a_sheet_of_many_columns_is_left_as_it_is(tmp_path):
    np.savez(tmp_path / "x.npz", images=np.zeros((2, 5, 4, 4, 1)))
    data = {"columns": list("abcde"), "rows": ["sample", "nearest"]}
    exhibit = Exhibit(kind="pictures", scenario="s", title="t", caption="", data=data, file="x.npz")
    assert sheet(exhibit, tmp_path, cards=CARDS, show=True).columns == tuple("abcde")


@pytest.mark.parametrize("shape", [(8, 8, 1), (32, 32, 3), (64, 48, 1), (2, 2, 1), (1, 5, 3)])
def test_blur_depends_on_the_mosaic_alone(shape):
    """Two pictures with the same rounded means look the same: nothing finer can be sharpened back."""
    draw = np.random.default_rng(0)
    image = np.full(shape, 3 / (STEPS - 1))
    other = image + 0.2 * draw.choice([-1.0, 1.0], size=shape)
    height, width, _ = shape
    if height >= 2 * MOSAIC and width >= 2 * MOSAIC:
        for band in np.array_split(np.arange(height), MOSAIC):
            for block in np.array_split(np.arange(width), MOSAIC):
                tile = np.ix_(band, block)
                other[tile] -= other[tile].mean(axis=(0, 1)) - image[tile].mean(axis=(0, 1))
        np.testing.assert_allclose(blur(other), blur(image), atol=1e-6)
    assert blur(other).shape == shape
    assert blur(other).min() >= 0
    assert blur(other).max() <= 1


def test_the_digits_of_a_set_are_no_longer_told_apart():
    """Nearest blurred prototype: far below the share that the sharp pictures reach."""
    draw = np.random.default_rng(1)
    shapes = (draw.random((20, 8, 8, 1)) > 0.5).astype(float)
    flipped = np.abs(shapes - (draw.random(shapes.shape) < 0.1))

    def hits(change):
        distance = ((change(flipped)[:, None] - change(shapes)[None]) ** 2).sum(axis=(2, 3, 4))
        return (distance.argmin(axis=1) == np.arange(20)).mean()

    assert hits(lambda x: x) == 1.0
    assert hits(lambda x: np.stack([blur(i) for i in x])) < 1.0


@pytest.mark.parametrize(("options", "private"), [({}, True), ({"show_private": True}, False)])
def test_the_page_blurs_unless_asked(options, private, tmp_path):
    run = specimen.write(specimen.specimen(tmp_path), tmp_path)
    page = write_html(run, **options).read_text()
    sharp = png(pictures(specimen.pictures_exhibit(tmp_path, "ward-7", size=64), tmp_path)[0, 0])
    assert (sharp not in page) == private
    assert ("these are private data" in page) == private
    assert "inversion-defences" in page  # the public scenario's pictures are sharp either way
    open_ = png(pictures(specimen.pictures_exhibit(tmp_path, "inversion-defences"), tmp_path)[0, 0])
    assert open_ in page


def test_a_scenario_without_a_card_counts_as_private(tmp_path):
    exhibit = specimen.pictures_exhibit(tmp_path, "unknown")
    specimen.write(Result(suite="x", exhibits=(exhibit,)), tmp_path)
    page = write_html(tmp_path).read_text()
    assert len(re.findall('class="blurred"', page)) == 20


@pytest.mark.parametrize("file", ["../outside.npz", "/etc/hostname"])
def test_reads_nothing_outside_the_run(file, exhibit, tmp_path):
    np.savez(tmp_path.parent / "outside.npz", images=np.zeros((1, 1, 2, 2, 1)))
    with pytest.raises(BadFile, match="below the run directory"):
        sheet(dataclasses.replace(exhibit, file=file), tmp_path, cards=CARDS, show=True)


@pytest.mark.parametrize(
    "images",
    [np.full((1, 1, 4, 4, 1), np.nan), np.full((1, 1, 4, 4, 1), 1.5), np.zeros((1, 4, 4, 1)),
     np.zeros((1, 1, 4, 4, 2)), np.zeros((0, 1, 4, 4, 1))],
)  # fmt: skip
def test_pictures_out_of_range_are_refused(images, exhibit, tmp_path):
    np.savez(tmp_path / exhibit.file, images=images)
    with pytest.raises(BadFile, match=r"\[0, 1\]"):
        sheet(exhibit, tmp_path, cards=CARDS, show=True)


def test_a_file_that_is_no_archive_is_refused(exhibit, tmp_path):
    (tmp_path / exhibit.file).write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(BadFile, match="with 'images'"):
        sheet(exhibit, tmp_path, cards=CARDS, show=True)
