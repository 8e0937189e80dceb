from spiritlevel.cli import app

app(prog_name="spiritlevel")
