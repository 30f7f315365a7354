import io
import random
import struct
import warnings

import cv2
import numpy as np
import pytest
import torch
from PIL import Image, ImageChops, ImageOps

from hf_curriculum.cli.common import image_files
from hf_curriculum.data.images import UnreadableImageError, image_size, open_header, to_rgb


def encoded(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def photograph(size=(48, 32)):
    """A smooth image, so that JPEG changes it little."""
    x, y = np.meshgrid(np.linspace(0, 255, size[0]), np.linspace(0, 255, size[1]))
    return Image.fromarray(np.stack([x, y, 255 - x], axis=-1).astype(np.uint8))


def without_adobe_marker(jpeg):
    """The same JPEG without its APP14 segment."""
    start = jpeg.index(b"\xff\xee")
    length = int.from_bytes(jpeg[start + 2 : start + 4], "big")
    assert jpeg[start + 4 : start + 9] == b"Adobe"
    return jpeg[:start] + jpeg[start + 2 + length :]


class TestModes:
    def test_rgb_comes_back_uncopied(self):
        image = photograph()
        assert to_rgb(image) is image

    def test_greyscale(self):
        image = to_rgb(Image.new("L", (3, 2), 77))
        assert (image.mode, image.size, image.getpixel((0, 0))) == ("RGB", (3, 2), (77, 77, 77))

    def test_one_bit(self):
        assert to_rgb(Image.new("1", (2, 2), 1)).getpixel((1, 1)) == (255, 255, 255)

    @pytest.mark.parametrize(
        ("dtype", "value", "expected"),
        [("<u2", 65535, 255), ("<u2", 32896, 128), ("<u2", 257, 1), ("<u2", 200, 1), (">u2", 32896, 128)],
    )
    def test_sixteen_bit_is_scaled_by_its_range(self, dtype, value, expected):
        image = Image.fromarray(np.full((2, 2), value, dtype=dtype))
        assert image.mode.startswith("I;16")
        assert to_rgb(image).getpixel((0, 0)) == (expected,) * 3

    def test_sixteen_bit_png(self):
        ramp = np.linspace(0, 65535, 64).astype(np.uint16)[None].repeat(2, axis=0)
        pixels = np.asarray(to_rgb(encoded(Image.fromarray(ramp), "PNG")))[0, :, 0]
        np.testing.assert_array_equal(pixels, np.round(np.linspace(0, 65535, 64).astype(np.uint16) / 257))

    def test_a_dark_sixteen_bit_png_opened_as_32_bit_stays_dark(self):
        image = Image.fromarray(np.full((2, 2), 200, dtype=np.int32))  # as Pillow before 11 opens one
        image.format = "PNG"
        assert to_rgb(image).getpixel((0, 0)) == (1, 1, 1)

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ([0, 100, 255], [0, 100, 255]),
            ([0, 1], [0, 1]),
            ([0, 300], None),
            ([0, 65535], None),
            ([-100, 0, 100], None),
            ([7 << 20] * 2, None),
        ],
    )
    def test_32_bit_integers(self, values, expected):
        image = Image.fromarray(np.array([values], dtype=np.int32))
        assert image.mode == "I"
        self.check(image, expected)

    def check(self, image, expected):
        if expected is None:
            with pytest.raises(UnreadableImageError, match="no scale is known for them: which is white"):
                to_rgb(image)
        else:
            assert np.asarray(to_rgb(image))[0, :, 0].tolist() == expected

    @pytest.mark.parametrize(
        ("values", "expected"),
        [([0, 0.5, 1], [0, 128, 255]), ([0, 9.6, 255], None), ([0, 2], None), ([-1, 0, 1], None)],
    )
    def test_floats(self, values, expected):
        image = Image.fromarray(np.array([values], dtype=np.float32))
        assert image.mode == "F"
        self.check(image, expected)

    def test_a_dark_pgm_of_16_bits_stays_dark(self):
        assert to_rgb(b"P5 2 1 65535\n" + bytes([0, 200, 128, 128])).getpixel((0, 0))[0] == 1
        assert to_rgb(b"P5 2 1 65535\n" + bytes([0, 200, 128, 128])).getpixel((1, 0))[0] == 128

    def test_palette(self):
        image = photograph().quantize(16)
        assert image.mode == "P"
        np.testing.assert_array_equal(to_rgb(image), image.convert("RGB"))

    def test_palette_with_transparency_is_put_on_white(self):
        image = Image.new("P", (2, 1), 0)
        image.putpalette([0, 0, 0, 10, 20, 30])
        image.putpixel((1, 0), 1)
        decoded = to_rgb(encoded(image, "PNG", transparency=0))
        assert (decoded.getpixel((0, 0)), decoded.getpixel((1, 0))) == ((255, 255, 255), (10, 20, 30))

    def test_a_colour_key_is_put_on_white(self):
        image = Image.new("RGB", (2, 1), (1, 2, 3))
        image.putpixel((1, 0), (9, 9, 9))
        decoded = to_rgb(encoded(image, "PNG", transparency=(1, 2, 3)))
        assert (decoded.getpixel((0, 0)), decoded.getpixel((1, 0))) == ((255, 255, 255), (9, 9, 9))

    @pytest.mark.parametrize(
        ("mode", "colour", "expected"),
        [
            ("RGBA", (100, 0, 0, 0), (255, 255, 255)),
            ("RGBA", (100, 0, 0, 255), (100, 0, 0)),
            ("RGBA", (100, 0, 0, 51), (224, 204, 204)),
            ("LA", (0, 0), (255, 255, 255)),
            ("LA", (0, 255), (0, 0, 0)),
        ],
    )
    def test_transparency_is_put_on_white(self, mode, colour, expected):
        assert to_rgb(Image.new(mode, (2, 2), colour)).getpixel((0, 0)) == expected

    def test_cmyk(self):
        assert to_rgb(Image.new("CMYK", (2, 2), (0, 255, 255, 0))).getpixel((0, 0)) == (255, 0, 0)

    @pytest.mark.parametrize("adobe", [True, False])
    def test_cmyk_jpeg_with_and_without_adobes_inversion(self, adobe):
        image = photograph().convert("CMYK")
        jpeg = encoded(image, "JPEG", quality=95)
        if not adobe:  # plain inks: what a file with the marker would hold inverted
            jpeg = without_adobe_marker(encoded(ImageChops.invert(image), "JPEG", quality=95))
        difference = np.asarray(to_rgb(jpeg)).astype(int) - np.asarray(photograph())
        assert np.abs(difference).mean() < 5

    def test_a_mode_without_a_conversion_is_named(self):
        with pytest.raises(UnreadableImageError, match=r"cannot be decoded \(ValueError: .*La"):
            to_rgb(Image.new("La", (2, 2)))

    def test_the_first_frame_of_an_animation(self):
        frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
        assert to_rgb(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])).getpixel((0, 0)) == (
            255,
            0,
            0,
        )


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(orientation):
    upright = photograph()
    back = {1: None, 2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}[orientation]  # the transposition that undoes it
    stored = upright if back is None else upright.transpose(Image.Transpose(back))
    exif = Image.Exif()
    exif[0x0112] = orientation
    decoded = to_rgb(encoded(stored, "PNG", exif=exif.tobytes()))
    np.testing.assert_array_equal(decoded, upright)
    assert to_rgb(decoded) is decoded  # not turned again


class TestSources:
    def test_all_forms_of_one_image(self, tmp_path):
        image, path = photograph(), tmp_path / "a.png"
        image.save(path)
        content = path.read_bytes()
        forms = [path, str(path), content, bytearray(content), {"bytes": content, "path": None}, np.asarray(image)]
        forms += [{"bytes": None, "path": str(path)}, {"bytes": content, "path": "elsewhere.png"}, Image.open(path)]
        forms += [np.moveaxis(np.asarray(image), -1, 0), torch.from_numpy(np.array(image)).permute(2, 0, 1)]
        forms += [np.asarray(image) / 255, torch.from_numpy(np.array(image) / 255)]
        for form in forms:
            np.testing.assert_array_equal(to_rgb(form), image)

    def test_the_address_of_a_remote_file_goes_through_datasets(self, tmp_path):
        import zipfile

        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr("a.png", encoded(photograph(), "PNG"))
        np.testing.assert_array_equal(to_rgb(f"zip://a.png::{tmp_path}/a.zip"), photograph())

    @pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1), (1, 4, 6)])
    def test_grey_arrays(self, shape):
        assert to_rgb(np.full(shape, 9, dtype=np.uint8)).size == (6, 4)

    @pytest.mark.parametrize("channels", [2, 4])
    def test_arrays_with_transparency(self, channels):
        assert to_rgb(np.zeros((4, 6, channels), dtype=np.uint8)).getpixel((0, 0)) == (255, 255, 255)

    def test_arrays_of_truth_values_and_16_bit(self):
        assert to_rgb(np.ones((2, 2), dtype=bool)).getpixel((0, 0)) == (255, 255, 255)
        assert to_rgb(np.full((2, 2), 32896, dtype=np.uint16)).getpixel((0, 0)) == (128, 128, 128)

    def test_read_only_arrays_stay_untouched(self):
        values = np.full((2, 2, 3), 0.5)
        values.flags.writeable = False
        to_rgb(values)
        assert (values == 0.5).all()


class TestErrors:
    def test_a_truncated_jpeg_is_named(self, tmp_path):
        path = tmp_path / "half.jpg"
        jpeg = encoded(photograph((200, 200)), "JPEG")
        path.write_bytes(jpeg[: len(jpeg) // 2])
        for form in (path, {"bytes": path.read_bytes(), "path": "half.jpg"}, Image.open(path)):
            with pytest.raises(UnreadableImageError, match=r"half\.jpg cannot be decoded \(OSError: .*truncated"):
                to_rgb(form)

    def test_a_text_file(self, tmp_path):
        (tmp_path / "a.jpg").write_text("<html>404</html>")
        with pytest.raises(UnreadableImageError, match=r"a\.jpg cannot be decoded \(UnidentifiedImageError"):
            to_rgb(tmp_path / "a.jpg")

    def test_a_missing_file(self, tmp_path):
        with pytest.raises(UnreadableImageError, match=r"nowhere\.jpg: there is no such file"):
            to_rgb(str(tmp_path / "nowhere.jpg"))

    @pytest.mark.parametrize("nothing", [None, {"bytes": None, "path": None}, 7])
    def test_no_image(self, nothing):
        with pytest.raises(UnreadableImageError, match="is no image: a PIL image, a path, bytes"):
            to_rgb(nothing)

    @pytest.mark.parametrize("shape", [(5,), (5, 6, 7), (2, 3, 4, 5), (0, 4, 3)])
    def test_an_array_of_another_shape(self, shape):
        with pytest.raises(UnreadableImageError, match=r"has the shape .* An image is"):
            to_rgb(np.zeros(shape, dtype=np.uint8))

    def test_an_array_that_was_normalised_already(self):
        with pytest.raises(UnreadableImageError, match=r"from -2 to 2.* leave that to the image processor"):
            to_rgb(np.linspace(-2, 2, 12, dtype=np.float32).reshape(2, 2, 3))

    @pytest.mark.parametrize("values", [np.full((2, 2), np.nan), np.zeros((2, 2), dtype=complex)])
    def test_values_that_are_no_numbers(self, values):
        with pytest.raises(UnreadableImageError, match="not all finite numbers"):
            to_rgb(values)

    def test_the_name_given_is_used(self):
        with pytest.raises(UnreadableImageError, match="row 7 cannot be decoded"):
            to_rgb(b"nonsense", name="row 7")

    @pytest.mark.filterwarnings("ignore::UserWarning:PIL")
    @pytest.mark.parametrize(
        ("kind", "mode"),
        [("JPEG", "RGB"), ("JPEG", "CMYK"), ("PNG", "P"), ("GIF", "P"), ("TIFF", "RGB"), ("WEBP", "RGB")],
    )
    def test_damaged_files_raise_nothing_else(self, kind, mode):
        content = encoded(ImageOps.autocontrast(photograph()).convert(mode), kind)
        generator, unreadable = random.Random(0), 0
        for _ in range(150):
            damaged = bytearray(content)
            for _ in range(5):
                damaged[generator.randrange(len(damaged))] = generator.randrange(256)
            try:
                to_rgb(bytes(damaged[: generator.randrange(len(damaged) // 2, len(damaged))]))
            except UnreadableImageError:
                unreadable += 1
        assert unreadable > 20


@pytest.mark.parametrize(
    "shape",
    [*((4, 6, 1), (4, 6, 2), (4, 6, 3), (4, 6, 4), (3, 6, 2)), *((1, 4, 6), (3, 4, 6), (4, 4, 6), (3, 3, 3), (5, 1))],
)
def test_where_the_channels_of_an_array_are(shape):
    first = len(shape) == 3 and shape[-1] == 6
    size = shape[2:0:-1] if first else shape[1::-1]
    assert to_rgb(np.zeros(shape, np.uint8)).size == size


@pytest.mark.parametrize("shape", [(2, 4, 6), (6, 6, 5), (5, 4, 6), (4, 0)])
def test_arrays_that_are_no_image(shape):
    with pytest.raises(UnreadableImageError, match="has the shape"):
        to_rgb(np.zeros(shape, np.uint8))


@pytest.mark.parametrize("dtype", [np.uint32, np.int16, np.int64, np.float32])
def test_numbers_up_to_255_are_bytes_but_for_16_bits_without_sign(dtype):
    assert np.asarray(to_rgb(np.array([[0, 51, 255]], dtype)))[0, :, 0].tolist() == [0, 51, 255]
    assert np.asarray(to_rgb(np.array([[0, 51, 255]], np.uint16)))[0, :, 0].tolist() == [0, 0, 1]


def test_exactly_the_most_pixels_are_read():
    content = encoded(photograph((4, 3)), "PNG")
    assert to_rgb(content, max_pixels=12).size == (4, 3)
    with pytest.raises(UnreadableImageError, match="4 × 3 = 12 pixels, more than the limit of 11"):
        to_rgb(content, max_pixels=11)


def test_a_large_header_is_no_warning(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_header(io.BytesIO(encoded(photograph((4, 4)), "PNG"))).size == (4, 4)


def test_the_size_of_an_image_in_every_form(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    sizes = {}
    for kind in ("PNG", "JPEG", "TIFF"):
        for turned in (False, True):
            file = tmp_path / f"{kind} {turned}"
            photograph((6, 4)).save(file, kind, **({"exif": exif} if turned else {}))
            content = file.read_bytes()
            forms = (str(file), file, content, bytearray(content), {"bytes": content, "path": None}, Image.open(file),
                     {"bytes": None, "path": str(file)})  # fmt: skip
            sizes[file.name] = {image_size(form) for form in forms}
    assert sizes == {name: {(4, 6) if "True" in name else (6, 4)} for name in sizes}
    cut = encoded(photograph((60, 40)), "PNG")[:60]  # Pillow would decode it to look for EXIF
    assert image_size(cut) == (60, 40)
    for nothing in (None, {"bytes": None, "path": None}, b"none", str(tmp_path / "gone"), np.zeros((2, 2, 9, 9))):
        assert image_size(nothing) == (None, None)


def tiff(bits, values, photometric=1, kind=1):
    """A TIFF of one row of numbers that Pillow itself does not write."""
    data = values if isinstance(values, bytes) else values.tobytes()
    width = 8 * len(data) // bits
    tags = [(256, 3, width), (257, 3, 1), (258, 3, bits), (259, 3, 1), (262, 3, photometric), (273, 4, 8)]
    tags += [(277, 3, 1), (278, 3, 1), (279, 4, len(data)), (339, 3, kind)]
    body = b"".join(struct.pack("<HHII", tag, form, 1, value) for tag, form, value in tags)
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + struct.pack("<H", len(tags)) + body + bytes(4)


def row(file):
    return [pixel[0] for pixel in np.asarray(to_rgb({"bytes": file, "path": None}))[0].tolist()]


SHORTS = np.array([[0, 4095, 32768, 65535]], np.uint16)
TRANSPARENT = np.array([[[0, 0, 0, alpha] for alpha in (0, 32768, 65535)]], np.uint16)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (tiff(16, SHORTS), [0, 16, 128, 255]),
        (tiff(16, SHORTS, photometric=0), [255, 239, 127, 0]),  # 0 is white
        (tiff(8, np.array([0, 100, 255], np.uint8), photometric=0), [255, 155, 0]),
        (tiff(12, bytes([0xFF, 0xF0, 0x00, 0x80, 0x00, 0x00])), [255, 0, 128, 0]),
        (tiff(32, np.array([0, 100, 255], np.uint32)), [0, 100, 255]),
        (tiff(16, np.array([0, 100, 255], np.int16), kind=2), [0, 100, 255]),
        (tiff(32, np.array([0, 0.5, 1], np.float32), kind=3), [0, 128, 255]),
        (encoded(Image.fromarray(SHORTS), "PNG"), [0, 16, 128, 255]),
        (encoded(Image.fromarray(SHORTS), "PNG", transparency=4095), [0, 255, 128, 255]),  # on white
        (encoded(Image.fromarray(np.uint8([[0, 77]])), "PNG", transparency=77), [0, 255]),
        (cv2.imencode(".png", np.stack([SHORTS] * 3, -1))[1].tobytes(), [0, 15, 128, 255]),
        (
            cv2.imencode(".png", np.uint16([[[0, 0, 0, 0], [0, 0, 0, 32768], [0, 0, 0, 65535]]]))[1].tobytes(),
            [255, 127, 0],
        ),
    ],
)
def test_numbers_of_any_width_are_scaled_by_what_the_file_says(file, expected):
    assert row(file) == expected


@pytest.mark.parametrize(
    ("bits", "values", "kind"),
    [
        (32, np.array([0, 2**31, 2**32 - 1], np.uint32), 1),
        (32, np.array([0, 300], np.int32), 2),
        (16, np.array([-100, 0, 155], np.int16), 2),
        (32, np.array([0, 2], np.float32), 3),
    ],
)
def test_tiffs_that_do_not_say_what_is_white_are_refused(bits, values, kind):
    with pytest.raises(UnreadableImageError, match=r"holds \w+ values from .*which is white"):
        row(tiff(bits, values, kind=kind))


def test_the_first_picture_of_an_animation_in_every_format():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    for kind in ("GIF", "PNG", "WEBP", "TIFF"):
        red, green, blue = to_rgb(
            {"bytes": encoded(frames[0], kind, save_all=True, append_images=frames[1:]), "path": None}
        ).getpixel((1, 1))
        assert (red, green // 4, blue) == (255, 0, 0), kind


def test_images_of_a_folder_by_any_ending_and_the_other_files_counted(tmp_path, caplog):
    names = ["a.JPG", "b.jfif", "c.jpe", "d.webp", "e.avif", "f.Tiff", ".hidden.txt"]
    for name in (*names, "notes.txt", "more.TXT", "list.csv", "below/g.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [file.name for file in image_files([tmp_path], False)] == names[:-1]
    assert "files of other endings (no images): 3 (" in caplog.text
