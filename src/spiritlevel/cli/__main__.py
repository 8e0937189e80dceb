from spiritlevel.cli import app

app()
