"""Draws the pictures of the documents again: ``python docs/draw_pictures.py``."""

from pathlib import Path

from pictures import programs, records

PICTURES = programs.PICTURES | records.PICTURES

if __name__ == "__main__":
    for name, picture in PICTURES.items():
        (Path(__file__).parent / "pictures" / name).write_text(picture())
