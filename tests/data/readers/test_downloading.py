"""Images of which a source holds the addresses, from a server on this machine."""

import hashlib
import io
import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import datasets
import pytest
from datasets import Dataset
from PIL import Image
from typer.testing import CliRunner

from hf_curriculum import CLIPSimilarity, RegionProposals, VisualEntropy, load_captioned
from hf_curriculum.cli import app
from hf_curriculum.config import digest
from hf_curriculum.data.readers import url_lists
from hf_curriculum.scorers.visual.detectors import Detector


def picture(width):
    file = io.BytesIO()
    Image.new("RGB", (width, 4)).save(file, "PNG")
    return file.getvalue()


asked = Counter()


class Server(BaseHTTPRequestHandler):
    def do_GET(self):
        asked[self.path] += 1
        name = self.path.strip("/").partition(".")[0]
        if name == "silent":
            threading.Event().wait(6)
        elif name == "gone":
            self.send_error(404)
        elif name in ("file", "round"):
            self.send_response(302)
            self.send_header("Location", "file:///etc/hostname" if name == "file" else self.path)
            self.end_headers()
        else:
            content = {"empty": b"", "large": b"x" * 5_000, "text": b"<html>"}.get(name)
            content = picture(int(name)) if content is None else content
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def site():
    asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def rows(site, *names):
    return [(f"{site}/{name}.png", f"caption {number}") for number, name in enumerate(names)]


def as_csv(folder, found):
    path = folder / "x.csv"
    path.write_text("url,caption\n" + "".join(f"{url},{caption}\n" for url, caption in found))
    return path


def as_json_lines(folder, found):
    path = folder / "x.jsonl"
    path.write_text("".join(json.dumps({"image_url": url, "text": caption}) + "\n" for url, caption in found))
    return path


def as_url_list(folder, found):
    path = folder / "x.tsv"
    path.write_text("".join(f"{caption}\t{url}\n" for url, caption in found))
    return path


def as_parquet(folder, found):
    as_data_set(folder, found).to_parquet(folder / "x.parquet")
    return folder / "x.parquet"


def as_data_set(folder, found):
    return Dataset.from_dict({"url": [url for url, _ in found], "caption": [caption for _, caption in found]})


sources = pytest.mark.parametrize("make", [as_csv, as_json_lines, as_url_list, as_parquet, as_data_set])


@sources
def test_they_are_fetched_once_and_failures_counted(tmp_path, site, make, caplog):
    source = make(tmp_path, rows(site, "5", "gone", "6", "5"))
    loaded = load_captioned(source, download=True)
    assert loaded["caption"][:] == ["caption 0", "caption 2", "caption 3"]
    assert [image.size for image in loaded["image"]] == [(5, 4), (6, 4), (5, 4)]
    assert loaded["image_id"][:] == [f"{site}/{name}.png" for name in ("5", "6", "5")]
    assert "3 of 4 images are there (75.0 %); 1 is missing: 1 × HTTP Error 404: Not Found" in caplog.text
    assert asked == {"/5.png": 1, "/6.png": 1, "/gone.png": 1}
    assert load_captioned(source, download=True, check_images=False).num_rows == 3
    assert asked["/5.png"] == asked["/6.png"] == 1
    assert asked["/gone.png"] == 2  # tried again
    name = digest(f"{site}/5.png", size=16)
    file = url_lists.download_folder() / name[:2] / name
    whole = file.read_bytes()
    for content in (whole[:-1], whole[:40] + b"\0" + whole[41:]):
        file.write_bytes(content)
        assert load_captioned(source, download=True)["caption"][:] == ["caption 0", "caption 2", "caption 3"]
        assert file.read_bytes() == whole
    assert asked["/5.png"] == 3


@sources
def test_unasked_nothing_is_fetched(tmp_path, site, make):
    source = make(tmp_path, rows(site, "5"))
    with pytest.raises(ValueError, match=r"holds addresses \('http.*`download=True`.*--download.*img2dataset"):
        load_captioned(source)
    assert load_captioned(source, images=False)["caption"][:] == ["caption 0"]
    assert not asked


SIGNED = "X-Amz-Signature=secretsig"


def signed(site):
    """Addresses with signatures, one with a query that opens nothing, and two that differ in their secrets alone."""
    ends = (f"5.png?{SIGNED}0", f"5.png?id=5&{SIGNED}1", "6.png?id=5", "7.png?key=secretsig2", "7.png?key=secretsig3")
    return [(f"{site}/{end}", f"caption {number}") for number, end in enumerate(ends)]


def public(site):
    """What is shown of the signed addresses."""
    ends = ["5.png?X-Amz-Signature=<token>", "5.png?id=5&X-Amz-Signature=<token>", "6.png?id=5"]
    alike = [digest(f"{site}/7.png?key=secretsig{number}", size=8) for number in (2, 3)]
    return [f"{site}/{end}" for end in [*ends, *(f"7.png?key=<token>#{end}" for end in alike)]]


@sources
@pytest.mark.parametrize("options", [{"download": True}, {"images": False}])
def test_ids_and_names_hold_no_secrets(tmp_path, site, make, options, caplog):
    loaded = load_captioned(make(tmp_path, signed(site)), **options)
    assert loaded["image_id"][:] == public(site)
    assert len(set(loaded["image_id"])) == 5
    if "file_name" in loaded.column_names:
        assert loaded["file_name"][:] == public(site)
    if make is as_url_list:
        assert loaded["url"][:] == public(site)
    texts = loaded.select_columns([name for name in loaded.column_names if name != "image"])
    assert "secretsig" not in repr(texts[:]) + caplog.text
    if options == {"download": True}:
        assert [image.size[0] for image in loaded["image"]] == [5, 5, 6, 7, 7]
        assert set(asked) == {url.removeprefix(site) for url, _ in signed(site)}  # with their signatures
        name = digest(signed(site)[0][0], size=16)
        assert (url_lists.download_folder() / name[:2] / name).read_bytes() == picture(5)


def test_columns_of_the_file_stay_as_they_are(tmp_path, site):
    (url, caption), shown = signed(site)[0], public(site)[0]
    table = {"image_url": url, "url": url, "image_id": "mine", "caption": caption}
    (tmp_path / "x.jsonl").write_text(json.dumps(table))
    for source in (tmp_path / "x.jsonl", Dataset.from_list([table])):
        row = load_captioned(source, download=True).remove_columns("image")[0]
        assert (row["image_id"], row["url"]) == ("mine", url)
        assert row.get("file_name", shown) == shown


def test_addresses_with_a_password_are_not_asked(tmp_path, site, caplog):
    address = f"{site}/6.png".replace("http://", "http://me:secretword@")
    loaded = load_captioned(as_csv(tmp_path, [*rows(site, "5"), (address, "closed")]), download=True)
    assert loaded["caption"][:] == ["caption 0"]
    assert "1 is missing: 1 × an address with a password, which is not sent" in caplog.text
    assert asked == {"/5.png": 1}
    with pytest.raises(ValueError, match=r"0 of 1 images .*with a password, which is not sent") as raised:
        load_captioned(as_data_set(tmp_path, [(address, "closed")]), download=True)
    assert "secretword" not in caplog.text + str(raised.value)


def test_reasons_hold_no_secrets(site):
    reason = url_lists._fetch(f"{site}/a b.png?{SIGNED}0")
    assert "control characters" in reason
    assert "X-Amz-Signature=<token>" in reason


def test_every_failure_is_counted_by_its_reason(tmp_path, site, caplog, monkeypatch):
    monkeypatch.setattr(url_lists, "TIMEOUT", 2.0)
    monkeypatch.setattr(url_lists, "MAX_BYTES", 4_000)
    found = [*rows(site, "5", "gone", "empty", "large", "silent", "file", "round", "text")]
    found += [("http://127.0.0.1:1/x.png", "no server"), ("http://[", "no address"), ("a.png", "a name")]
    loaded = load_captioned(as_data_set(tmp_path, found), download=True)
    assert loaded["caption"][:] == ["caption 0"]
    said = caplog.text
    assert "2 of 11 images are there" in said  # one of them is no image
    lost = url_lists.Counter(url_lists._fetch(url) for url, _ in found[1:])
    reasons = " ".join(str(reason) for reason in lost)
    for reason in ("404: Not Found", "an empty answer", "larger than 4,000 bytes", "timed out", "no address"):
        assert reason in reasons
    assert "not allowed" in reasons  # a redirection to a file
    assert "refused" in reasons
    assert "redirect error" in reasons
    assert "1 image cannot be read, which leaves out 1 row" in said


def test_an_image_that_comes_too_slowly(tmp_path, site, monkeypatch):
    monkeypatch.setattr(url_lists, "TIMEOUT", 0.5)
    moments = iter(range(0, 10_000, 100))
    monkeypatch.setattr(url_lists, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    source = as_data_set(tmp_path, rows(site, "5"))
    with pytest.raises(ValueError, match="1 × not complete after 3 seconds"):
        load_captioned(source, download=True)


def test_none_could_be_fetched(tmp_path, site):
    with pytest.raises(ValueError, match=r"0 of 1 images are there .*404.*Look at the addresses and the network"):
        load_captioned(as_csv(tmp_path, rows(site, "gone")), download=True)


def test_without_addresses_it_is_an_error(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    (tmp_path / "captions.csv").write_text("image,caption\na.png,A dog.\n")
    data = load_captioned(tmp_path)
    data.save_to_disk(tmp_path / "saved")
    for source in (tmp_path, data, tmp_path / "saved"):
        with pytest.raises(ValueError, match="`download=True` would have no effect"):
            load_captioned(source, download=True)
    for rows in (data, data.select_columns(["caption"])):
        with pytest.raises(ValueError, match="x holds no addresses of images, but None for example"):
            url_lists.download_images(rows, "x")
    (tmp_path / "x.tsv").write_text("A dog.\thttp://a/b.png\n")
    with pytest.raises(ValueError, match=r"'download': True.*would have no effect"):
        load_captioned(tmp_path / "x.tsv", images=tmp_path, download=True)


def test_from_the_shell(tmp_path, site):
    source = as_csv(tmp_path, rows(site, "5", "6"))
    words = ["score", str(source), str(tmp_path / "out"), "--scorer", "caption_length"]
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 1
    assert "--download" in refused.output
    assert CliRunner().invoke(app, [*words, "--download"]).exit_code == 0
    saved = datasets.load_from_disk(tmp_path / "out")
    assert [image.size for image in saved["image"]] == [(5, 4), (6, 4)]


def test_numbered_captions_from_the_shell(tmp_path):
    (tmp_path / "data").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "data" / "a.png")
    (tmp_path / "data" / "x.csv").write_text("image,first,second\na.png,A dog.,A cat runs.\n")
    words = ["score", str(tmp_path / "data"), str(tmp_path / "out"), "--scorer", "caption_length"]
    for given in (["--column", "caption=first,second"], ["--column", "caption=first", "--column", "caption=second"]):
        done = CliRunner().invoke(app, [*words, *given, "--overwrite"])
        assert done.exit_code == 0, done.output
        assert datasets.load_from_disk(tmp_path / "out")["caption_length"][:] == [2, 3]


class Blind(Detector):
    def load(self, device):
        return None


@pytest.mark.parametrize("scorer", [CLIPSimilarity, lambda: VisualEntropy(Blind()), RegionProposals])
def test_scorers_name_the_addresses(scorer):
    with pytest.raises(ValueError, match=r"holds addresses \('https://a/b.jpg'\).*download=True"):
        scorer()({"image": ["https://a/b.jpg"], "caption": ["A dog."]})


def test_edges_of_size_and_time_and_of_what_is_said(site, monkeypatch):
    size = len(picture(5))
    monkeypatch.setattr(url_lists, "MAX_BYTES", size - 1)
    assert url_lists._fetch(f"{site}/5.png") == f"larger than {size - 1:,} bytes"
    monkeypatch.setattr(url_lists, "MAX_BYTES", size)
    monkeypatch.setattr(url_lists, "TIMEOUT", 0.5)
    for last, reason in ((3.0, None), (3.01, "not complete after 3 seconds")):
        moments = iter([0.0, *[last] * 9])
        monkeypatch.setattr(url_lists, "time", SimpleNamespace(monotonic=lambda moments=moments: next(moments)))
        found = url_lists._fetch(f"{site}/5.png?{last}")
        assert found == reason if reason else found.is_file()
    for error, said in ((OSError("a  b\n" * 40), ("a b " * 40)[:80]), (OSError(), "OSError")):
        monkeypatch.setattr(url_lists, "_opener", lambda error=error: (_ for _ in ()).throw(error))
        assert url_lists._fetch("http://127.0.0.1/x") == said


def test_where_downloads_are_kept_and_what_is_said_meanwhile(tmp_path, site, monkeypatch):
    told, real = [], url_lists.tqdm
    monkeypatch.setattr(url_lists, "tqdm", lambda some, *words, **more: told.append((*words, more)) or real(some))
    address = f"{site}/5.png"
    load_captioned(as_data_set(tmp_path, rows(site, "5", "5", "6")), download=True)
    assert told == [("Downloading images", 2, {"delay": 2})]
    name = hashlib.blake2b(address.encode(), digest_size=16).hexdigest()
    file = tmp_path / "cache" / "hf_curriculum" / "downloads" / name[:2] / name
    assert url_lists._fetch(address) == file
    assert file.read_bytes() == picture(5)
