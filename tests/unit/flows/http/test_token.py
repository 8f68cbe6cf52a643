from resurgam.flows.http.token import is_token, number_of, webhook_token

SECRET = b"s" * 32


def test_a_token_belongs_to_one_item_of_one_run_in_one_store():
    token = webhook_token(SECRET, "run/7")

    assert is_token(SECRET, "run/7", token)
    assert not is_token(SECRET, "run/8", token)
    assert not is_token(SECRET, "other/7", token)
    assert not is_token(b"t" * 32, "run/7", token)
    assert not is_token(SECRET, "run/7", token.upper())
    assert not is_token(SECRET, "run/7", "ü\ud800")


def test_a_token_names_its_item_and_shows_nothing_of_the_secret():
    token = webhook_token(SECRET, "run/7")

    assert number_of(token) == 7
    assert len(token) == len("7-") + 32
    assert SECRET.hex()[:8] not in token


def test_what_is_no_token_has_no_number():
    for text in (
        "",
        "7",
        "7-",
        "x-" + "0" * 32,
        "7-" + "0" * 31,
        "7-" + "G" * 32,
        "-7-" + "0" * 32,
        "\u0667-" + "0" * 32,
    ):
        assert number_of(text) is None
