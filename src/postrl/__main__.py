from postrl.cli import main

main()
