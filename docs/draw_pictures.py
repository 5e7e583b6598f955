"""Draws the pictures of the documents again: ``python docs/draw_pictures.py``."""

from pathlib import Path

from pictures import programs, rates, records, turns

PICTURES = programs.PICTURES | records.PICTURES | rates.PICTURES | turns.PICTURES

if __name__ == "__main__":
    for name, picture in PICTURES.items():
        (Path(__file__).parent / "pictures" / name).write_text(picture())
