from raylab.review.sign_in_limit import OVERALL, PER_ADDRESS, SignInLimit


class Clock:
    time = 0.0

    def __call__(self) -> float:
        return self.time


def test_an_address_has_five_attempts_a_minute() -> None:
    clock = Clock()
    limit = SignInLimit(clock)
    for clock.time in (0.0, 1.0, 2.0, 3.0, 4.0):
        assert limit.count("192.0.2.1") == 0.0
    clock.time = 10.0
    assert limit.count("192.0.2.1") == 50.0 and limit.count("192.0.2.2") == 0.0
    clock.time = 60.0
    # One more; those that were not admitted have not counted.
    assert limit.count("192.0.2.1") == 0.0 and limit.count("192.0.2.1") == 1.0


def test_an_address_that_gives_the_right_token_begins_anew() -> None:
    limit = SignInLimit(Clock())
    for _ in range(PER_ADDRESS):
        limit.count("192.0.2.1")
    limit.forget("192.0.2.2")
    assert limit.count("192.0.2.1") > 0
    limit.forget("192.0.2.1")
    assert limit.count("192.0.2.1") == 0.0


def test_with_many_addresses_one_guesses_once_with_each() -> None:
    limit = SignInLimit(Clock())
    for number in range(OVERALL // PER_ADDRESS):
        for _ in range(PER_ADDRESS):
            assert limit.count(f"192.0.2.{number}") == 0.0
    assert limit.count("198.51.100.1") == 0.0 and limit.count("198.51.100.1") == 60.0
    # Who knows the token is let in all the same, at the first attempt.
    assert limit.count("203.0.113.1") == 0.0


def test_a_household_has_many_addresses_of_version_six() -> None:
    limit = SignInLimit(Clock())
    for number in range(PER_ADDRESS):
        assert limit.count(f"2001:db8:0:1::{number}") == 0.0
    assert limit.count("2001:db8:0:1:ffff::") > 0 and limit.count("2001:db8:0:2::") == 0.0
    assert limit.count("::1") == 0.0 and limit.count("") == 0.0 and limit.count("testclient") == 0.0
    for _ in range(PER_ADDRESS):
        limit.count("::ffff:192.0.2.1")
    assert limit.count("192.0.2.1") > 0
