"""Arithmetic items: addition and subtraction of up to three digits, plain or digit by digit."""

from random import Random

from tools.demo_model.example import END_OF_TEXT, Item, Piece, is_held_out

_ADD_PHRASES = (
    "What is {a} + {b}?", "{a} + {b}", "{a} + {b} =", "Add {a} and {b}.", "What is {a} plus {b}?",
    "Calculate {a} + {b}.", "How much is {a} plus {b}?", "What is the sum of {a} and {b}?",
    "Please add {b} to {a}.", "Compute {a} + {b}", "{a}+{b}", "What's {a} + {b}?",
    "I have {a} coins and get {b} more. How many coins do I have?", "what is {a}+{b}",
)  # fmt: skip
_SUB_PHRASES = (
    "What is {a} - {b}?", "{a} - {b}", "{a} - {b} =", "Subtract {b} from {a}.",
    "What is {a} minus {b}?", "Calculate {a} - {b}.", "How much is {a} minus {b}?",
    "Please take {b} away from {a}.", "Compute {a} - {b}", "{a}-{b}", "What's {a} - {b}?",
    "What is the difference of {a} and {b}?", "what is {a}-{b}",
    "I have {a} coins and lose {b}. How many coins do I have?",
)  # fmt: skip
_PLACES = ("ones", "tens", "hundreds", "thousands")


def _operand(rng: Random, digits: int) -> int:
    return rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)


def _key(a: int, b: int, sign: str) -> str:
    """The same key for both orders of a sum, so that a swapped sum is not a held-out item."""
    low, high = (min(a, b), max(a, b)) if sign == "+" else (a, b)
    return f"arithmetic:{low}{sign}{high}"


def digit_steps(a: int, b: int, sign: str) -> str:
    """Column arithmetic spelled out, from the ones upwards."""
    top, bottom = (a, b) if sign == "+" else (max(a, b), min(a, b))
    lines, carry = [], 0
    for place in range(max(len(str(top)), len(str(bottom)))):
        x, y = top // 10**place % 10, bottom // 10**place % 10
        value = x + y + carry if sign == "+" else x - y - carry
        shown = f"{x} {sign} {y}" + (f" {sign} {carry}" if carry else "")
        carry = int(value > 9 or value < 0)
        lines.append(f"{_PLACES[place]}: {shown} = {value}, write {value % 10}, carry {carry}")
    return "\n".join(lines)


def _operands(rng: Random, digits: int, negative: bool) -> tuple[int, int, str]:
    sign = rng.choice("+-")
    a, b = _operand(rng, digits), _operand(rng, digits)
    if rng.random() < 0.25:
        b = _operand(rng, rng.randint(1, digits))
        if sign == "+" and rng.random() < 0.5:
            a, b = b, a
    if sign == "-" and (a < b) != negative:
        a, b = b, a
    return a, b, sign


def equation(a: int, b: int, sign: str) -> str:
    """The equation with its result."""
    return f"{a} {sign} {b} = {a + b if sign == '+' else a - b}"


def arithmetic_item(rng: Random, digits: int, negative: bool = False) -> Item:
    """A question about one sum or difference; the answer restates it as an equation."""
    a, b, sign = _operands(rng, digits, negative)
    if negative and sign == "+":
        a, b, sign = min(a, b), max(a, b), "-"
    phrase = rng.choice(_ADD_PHRASES if sign == "+" else _SUB_PHRASES)
    skill = "negative results" if negative else f"arithmetic, {digits} digits"
    return Item(
        skill, _key(a, b, sign), phrase.format(a=a, b=b), equation(a, b, sign),
        thought=digit_steps(a, b, sign),
    )  # fmt: skip


def arithmetic_completion(rng: Random, digits: int) -> Item:
    """`12 + 34 =` as plain text."""
    a, b, sign = _operands(rng, digits, False)
    left, right = equation(a, b, sign).split("=")
    name = f"arithmetic, {digits} digits"
    return Item(name, _key(a, b, sign), f"{left}=", right, completion=True)


def arithmetic_drill(rng: Random) -> list[Piece]:
    """Lines of equations as plain text, only the results predicted: dense practice.

    The heading tells it apart from a single equation, after which the text ends.
    """
    runs = [Piece("Exercises:\n", False)]
    last = 2 * rng.randint(6, 16)
    while len(runs) < last:
        digits = rng.choice((1, 2, 2, 2, 2, 3, 3, 3, 3, 3))
        a, b, sign = _operands(rng, digits, rng.random() < 0.1)
        if is_held_out(_key(a, b, sign)):
            continue
        left, right = equation(a, b, sign).split("=")
        end = END_OF_TEXT if len(runs) == last - 1 else "\n"
        runs += [Piece(f"{left}=", False), Piece(right + end, True)]
    return runs
