import pytest
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils import httpx

from hf_curriculum.hub.errors import HubError, explain, explained, redact, validate_token

TOKEN = "hf_abcdefghijklmnop"


def refused(status, said="because"):
    request = httpx.Request("POST", "https://hub.example/api")
    return HfHubHTTPError(f"refused: {said}", response=httpx.Response(status, request=request), server_message=said)


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (401, "hf auth login"), (403, "permission to write"), (404, "Check the name"), (409, "busy"),
        (412, "Somebody else"), (413, "smaller shards"), (429, "Wait a few minutes"), (500, "Hub itself has failed"),
        (502, "Hub itself has failed"),
    ],
)  # fmt: skip
def test_what_the_hub_answers(status, says):
    with pytest.raises(HubError, match=says) as caught, explained("Pushing", "All is here.", TOKEN):
        raise refused(status)
    assert caught.value.status == status
    assert str(caught.value).startswith(f"Pushing failed: the Hub answered {status} (“because”).")
    assert str(caught.value).endswith("All is here.")


@pytest.mark.parametrize(
    "error",
    [httpx.ConnectError("no route"), OfflineModeIsEnabled("offline"), LocalTokenNotFoundError("no token"),
     httpx.RemoteProtocolError("")],
)  # fmt: skip
def test_no_answer(error):
    with pytest.raises(HubError, match=r"no answer \(.+\)\. The connection was lost") as caught, explained("A", "B"):
        raise error
    assert caught.value.status is None


def test_an_error_within_an_error():
    """`huggingface_hub` wraps what fails in a thread."""
    outer = RuntimeError("Error while uploading 'a' to the Hub.")
    outer.__cause__ = refused(500)
    with pytest.raises(HubError, match="answered 500"), explained("Pushing", "All is here."):
        raise outer


def test_other_errors_stay_what_they_are():
    for error in (ValueError("mine"), FileNotFoundError("gone"), RuntimeError("out of memory")):
        with pytest.raises(type(error), match=str(error)) as caught, explained("Pushing", "All is here."):
            raise error
        assert caught.value is error
    assert explain(ValueError("x"), "A", "B") is None
    inner = HubError("told already", 404)
    with pytest.raises(HubError) as caught, explained("Pushing", "All is here."):
        raise inner
    assert caught.value is inner


def test_a_token_is_never_shown():
    assert redact(f"got {TOKEN} and Bearer xyz", None) == "got <token> and Bearer <token>"
    assert redact("my-own-secret failed", "my-own-secret") == "<token> failed"
    with pytest.raises(HubError) as caught, explained("Pushing", "Here.", "my-own-secret"):
        raise refused(403, f"{TOKEN} or my-own-secret may not")
    assert "abcdefgh" not in str(caught.value)
    assert "my-own-secret" not in str(caught.value)
    assert caught.value.__cause__ is None  # or the traceback would show it
    with pytest.raises(HubError) as caught, explained("Pushing", "Here.", "my-own-secret"):
        raise refused(403)
    assert isinstance(caught.value.__cause__, HfHubHTTPError)
    assert redact("me/hf_curriculum-data by hf_curriculum") == "me/hf_curriculum-data by hf_curriculum"
    assert redact("hf_curriculumABCDEFGHIJ") == "<token>"
    for bad in ("", "hf_secret\n", "hf secret", "hf_sécret"):
        with pytest.raises(ValueError, match="is not shown here") as caught:
            validate_token(bad)
        assert not bad or bad.strip() not in str(caught.value)
    for good in (None, True, False, TOKEN):
        validate_token(good)
