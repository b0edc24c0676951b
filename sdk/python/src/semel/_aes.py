"""AES-128 of single blocks, for public ids that hide their time. Not for anything else: it is slow,
and its running time depends on the key."""

from __future__ import annotations

from typing import List


def _multiply(one: int, two: int) -> int:
    product = 0
    while two:
        if two & 1:
            product ^= one
        one = (one << 1) ^ (0x11B if one & 0x80 else 0)
        two >>= 1
    return product


def _box() -> List[int]:
    inverse = [0] * 256
    for one in range(1, 256):
        inverse[one] = next(two for two in range(1, 256) if _multiply(one, two) == 1)
    box = []
    for value in inverse:
        turned = value
        for by in range(1, 5):
            turned ^= ((value << by) | (value >> (8 - by))) & 0xFF
        box.append(turned ^ 0x63)
    return box


_BOX = _box()
_UNBOX = [_BOX.index(value) for value in range(256)]
# Where ShiftRows takes each byte from, and its inverse.
_SHIFT = [(at + 4 * (at % 4)) % 16 for at in range(16)]
_UNSHIFT = [_SHIFT.index(at) for at in range(16)]


class Aes128:
    """A key of 16 bytes that encrypts and decrypts blocks of 16 bytes."""

    def __init__(self, key: bytes) -> None:
        words = [list(key[at : at + 4]) for at in range(0, 16, 4)]
        constant = 1
        for at in range(4, 44):
            word = words[-1]
            if at % 4 == 0:
                word = [_BOX[byte] for byte in word[1:] + word[:1]]
                word[0] ^= constant
                constant = _multiply(constant, 2)
            words.append([one ^ two for one, two in zip(words[-4], word)])
        flat = [byte for word in words for byte in word]
        self._rounds = [flat[at : at + 16] for at in range(0, 176, 16)]

    def encrypt(self, block: bytes) -> bytes:
        """Encrypts a block."""
        state = _add(list(block), self._rounds[0])
        for number in range(1, 11):
            state = [_BOX[state[at]] for at in _SHIFT]
            if number < 10:
                state = _mix(state, (2, 3, 1, 1))
            state = _add(state, self._rounds[number])
        return bytes(state)

    def decrypt(self, block: bytes) -> bytes:
        """Decrypts a block."""
        state = list(block)
        for number in range(10, 0, -1):
            state = _add(state, self._rounds[number])
            if number < 10:
                state = _mix(state, (14, 11, 13, 9))
            state = [_UNBOX[state[at]] for at in _UNSHIFT]
        return bytes(_add(state, self._rounds[0]))


def _add(state: List[int], key: List[int]) -> List[int]:
    return [one ^ two for one, two in zip(state, key)]


def _mix(state: List[int], row: "tuple[int, int, int, int]") -> List[int]:
    mixed = []
    for column in range(0, 16, 4):
        for at in range(4):
            byte = 0
            for place in range(4):
                byte ^= _multiply(state[column + place], row[(place - at) % 4])
            mixed.append(byte)
    return mixed
