"""What measures Tilewright: tables in docs/results/ come from here. Not a part of the package."""
